"""Measurements as ratios against a peer or a limit in the same run; nothing here is asserted in tests."""
