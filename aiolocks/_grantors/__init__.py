"""Who decides over a name: one server, or several together; and the session that all of one client share."""
