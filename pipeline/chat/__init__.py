"""Conversations as text and tokens: parse what a model wrote, render with its template, mask, pack."""
