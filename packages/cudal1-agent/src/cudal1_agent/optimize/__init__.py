"""`cudal1-agent optimize`: a faster program for a user's module, confirmed, with the original as fallback."""
