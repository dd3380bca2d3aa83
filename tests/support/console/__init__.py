"""A console for tests: the application with its database, requests without a socket."""
