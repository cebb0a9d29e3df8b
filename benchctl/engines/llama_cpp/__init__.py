"""llama.cpp: probing `llama-server`, its command line, stream, ledger and attestation, and its build from source."""
