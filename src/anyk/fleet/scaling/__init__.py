"""What a step costs on a network of any number of nodes: as a star, in slices, as an all-reduce."""
