"""Parts that several tests share."""
