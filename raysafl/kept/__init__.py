"""The models that runs keep: the content of their files, and modules made from them."""
