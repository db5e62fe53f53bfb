"""What knows no subject: secrets in addresses, files and their locks."""
