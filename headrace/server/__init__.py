"""The shell: sockets, group commit, waiting and background jobs. The only package that awaits."""
