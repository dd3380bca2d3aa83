"""Decodes records into Arrow columns, with the kernel or with numpy."""
