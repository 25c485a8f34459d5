"""Theorem 1: does repeating the block step converge to the retrained model, and how fast?"""
