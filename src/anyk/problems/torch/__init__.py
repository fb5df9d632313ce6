"""PyTorch problems: any module and loss, on arrays, data sets, shards or streams."""
