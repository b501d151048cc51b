"""Who may take part: invitations, grants and what is withdrawn."""
