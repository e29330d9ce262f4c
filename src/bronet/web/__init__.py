"""The page of `bronet serve`: choose an image, see what is proved of it, and attack it. Holds no maths.

Needs the optional packages of `bronet[web]`; `bronet.web.server` is where they are asked for.
"""
