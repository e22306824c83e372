"""The demo: SmolLM2 with its own norms and with normkit's. See __main__.py."""
