"""What every experiment shares: what it is, how it runs, and its pages and plots."""
