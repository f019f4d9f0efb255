"""`volery service`: run a node or a learner from login or boot on, without a terminal.

- `command`: finds out what to run, and says what was done
- `launchd_manager`: installs launch agents on macOS
- `launchd_plist`: the text of a launch agent
- `manager`: what every service manager does, and how programs of the system are called
- `managers`: chooses this machine's manager, and finds the services that it has
- `service_spec`: what a service runs, what it is called, and the line by which its file is recognised
- `systemd_manager`: installs units of systemd's manager for a user
- `systemd_unit`: the text of a unit
- `windows_manager`: installs scheduled tasks of Windows, from WSL2
- `windows_task`: the texts of a scheduled task that starts a node in WSL2
"""
