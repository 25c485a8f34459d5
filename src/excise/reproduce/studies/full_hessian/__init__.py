"""Lemma 1: how fast does the block step's residual gradient approach that of a full Newton step, as the data grows?"""
