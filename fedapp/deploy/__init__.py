"""Federations on real hosts: what operators need, and a rehearsal of it on one machine.

=====================  =====================================================================
module                 subject
=====================  =====================================================================
``plan``               what a federation is: sites, host, port, checked
``certificates``       an authority of the federation's own, and the server's certificate
``site_keys``          what a site proves itself by: SuperNode key and identity
``private_files``      files that nobody else reads, and none that is written over
``federation_folder``  the whole folder: authority, server, operator, one folder a site
``start_scripts``      shell scripts
``service_units``      systemd units and compose files
``guides``             the README of each folder
``processes``          start processes, wait for them, end them by id
``rehearsal``          all of it on one machine, with a run of a task
``commands``           the command line
=====================  =====================================================================
"""
