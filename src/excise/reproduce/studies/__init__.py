"""The experiments of the paper, a package each."""
