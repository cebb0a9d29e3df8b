"""The adapter for an endpoint that already runs: any OpenAI-compatible server, with what it reports of itself."""
