"""Pure-Python versions of the kernel's codecs, used without the kernel or when it declines."""
