"""Conversations: how they lie in files, how a model's template writes them, which of their words are trained on."""
