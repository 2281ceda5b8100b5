"""`cudal1-agent optimize`: a user's own module, and a faster program for it, confirmed and with a way back."""
