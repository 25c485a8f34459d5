"""Appendix B: retraining with batch normalisation dips where the last batch of an epoch is a single sample."""
