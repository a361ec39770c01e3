"""How bytes move between roles: links, topology, collectives and the process group that torch sees."""
