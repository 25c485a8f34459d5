"""What belongs to no idea of its own: checks of arguments, progress, sampling."""
