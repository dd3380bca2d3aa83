"""What commands share: options, connection, output, named clusters."""
