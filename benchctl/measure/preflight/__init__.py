"""Checks of models and context before anything is measured."""
