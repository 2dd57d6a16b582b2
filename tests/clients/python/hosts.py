"""A plugin of pytest in the place of /etc/hosts: names that tests look up in the internet, without it.

Only the name is another one; the system's resolver is asked as ever.
"""

import socket

HOSTS = {"www.google.com": "127.0.0.1"}

ask = socket.getaddrinfo


def getaddrinfo(host, *args, **kwargs):
    return ask(HOSTS.get(host, host), *args, **kwargs)


socket.getaddrinfo = getaddrinfo
