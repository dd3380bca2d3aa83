"""What tests share: servers, clients, disks and programs that they start."""
