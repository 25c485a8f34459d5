"""Figure 5, right: removals from networks of many architectures on CIFAR-10."""
