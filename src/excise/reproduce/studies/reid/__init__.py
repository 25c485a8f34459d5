"""Figure re-ID and its appendix: a person's images are removed one by one from a network that finds people again."""
