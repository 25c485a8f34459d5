"""Real data from its official files, one file a data set; a loader never downloads, it says where to get them."""
