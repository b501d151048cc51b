"""A broker's set-up: certificates, accounts, access list; and questions that try it from outside.

``folder.py`` writes what Mosquitto reads, ``access.py`` says who may do what on which topic,
``accounts.py`` keeps the passwords, ``check.py`` asks a running broker whether it holds.
"""
