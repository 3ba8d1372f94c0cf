"""Read what the Linux kernel tells of processes: /proc, netlink, ELF files, futexes."""
