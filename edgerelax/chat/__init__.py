"""Texts and chats with a language model: tokens, templates, streams, OpenAI's requests."""
