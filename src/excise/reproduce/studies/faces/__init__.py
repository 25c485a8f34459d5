"""Figure 7, left: one person's images are removed one by one from a face recogniser."""
