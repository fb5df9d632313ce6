"""Run folders: configuration, checkpoints, digests, and everything else that is stored beside the log."""
