"""Frames over TCP: connections, a server and a client. No request code is named here."""
