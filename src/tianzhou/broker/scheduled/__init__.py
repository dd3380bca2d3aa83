"""Messages that are delivered later: delay levels, and the timer for any delivery time."""
