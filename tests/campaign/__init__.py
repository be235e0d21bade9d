"""The campaign: malformed calls, damage, kills, full disks, a second process."""
