"""Chats over HTTP, as OpenAI's API has them (docs/serve.md)."""
