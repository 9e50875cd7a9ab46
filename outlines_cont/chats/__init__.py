"""Parts of `Chat`: chat templates, rows that follow them, tools. May import the room's neighbours below `chat`."""
