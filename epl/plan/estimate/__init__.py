"""What a plan costs, in seconds and bytes, before it is made."""
