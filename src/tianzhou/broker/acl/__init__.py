"""Access control: accounts from plain_acl.yml, and the check of every request against them.

files     reads, watches and rewrites the files        accounts  what an account may do
guard     decides on a request                         needs     what a request needs, by its code
rights    whether an account has it                    message_topics  topics by log offset
"""
