"""Helpers of tests: servers, clients, simulated disks and started programs."""
