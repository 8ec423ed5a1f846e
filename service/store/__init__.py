"""SQL truth: the only room that imports sqlalchemy."""
