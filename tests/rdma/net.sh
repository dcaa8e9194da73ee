# Sourced in the virtual machine: makes its RDMA devices.
#
#	rxe0        on dummy0, 10.77.0.1: any number of processes talk over it
#	rxe1, rxe2  on veth0, 10.78.0.1, and veth1, 10.78.0.2, in one network namespace (Linux 6.1's Soft-RoCE knows no other). Policy
#	            routing sends what is between them over the wire, where a link can be cut and packets lost. Their MTUs differ:
#	            RoCE makes 4096 of 4200 and 1024 of 1500.
ip link show dummy0 >/dev/null 2>&1 || ip link add dummy0 type dummy
ip link set dummy0 mtu 4200 up
ip addr add 10.77.0.1/24 dev dummy0
rdma link add rxe0 type rxe netdev dummy0 || return 1

ip link add veth0 type veth peer name veth1 || return 1
mtus=(4200 1500)
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do
	ip link set veth$i mtu ${mtus[i]} up
	ip addr add 10.78.0.$((i + 1))/24 dev veth$i
	for k in accept_local=1 rp_filter=0 arp_ignore=1; do echo ${k#*=} > /proc/sys/net/ipv4/conf/veth$i/${k%=*}; done
	ip route add 10.78.0.0/24 dev veth$i table $((100 + i)) src 10.78.0.$((i + 1))
	ip rule add pref 10 oif veth$i lookup $((100 + i))
done
ip rule add pref 20 lookup local && ip rule del pref 0
for i in 0 1; do
	ip neigh replace 10.78.0.$((2 - i)) lladdr "$(cat /sys/class/net/veth$((1 - i))/address)" nud permanent dev veth$i
	rdma link add rxe$((i + 1)) type rxe netdev veth$i || return 1
done
