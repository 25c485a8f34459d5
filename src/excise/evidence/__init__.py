"""How well a deletion worked: attacks, gaps to retrained models, utility, and a verdict."""
