"""Figure 5, left: a thousand removals from a model of MNIST, by the full Hessian, L-FOCI's slices and random ones."""
