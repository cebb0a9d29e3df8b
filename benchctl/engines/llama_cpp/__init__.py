"""llama.cpp's `llama-server`: probing, command line, process, stream, ledger, attestation, and its build from source."""
