"""The adapter for SGLang: probing the installed package, its command line, stream, ledger and attestation."""
